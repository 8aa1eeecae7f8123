"""The mathematics as pure functions and distributions of tensors; nothing here knows of layers or training."""
