"""Small faults in ordinary training scripts, which test the rules on programs not used to develop them."""
