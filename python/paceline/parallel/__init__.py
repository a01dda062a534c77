"""What joins the workers of a model: shards of its tensors inside a rank, and the exchange of tokens for experts."""
