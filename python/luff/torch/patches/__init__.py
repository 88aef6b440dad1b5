"""The functions of torch that are replaced so that hooks see what a training does."""
