"""Other systems behind the interface of the capture benchmark."""
