"""Tables, merged timelines, and what data loaders did."""
