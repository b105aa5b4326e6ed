"""What a model is to the search: its operators, found in one forward on tensors that hold no data."""
