"""What the text of a training says by itself: results that nobody uses. Reads sources; touches no tensor."""
