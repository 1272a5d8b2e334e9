"""What runs on a node: engines put together with the stages that use them."""
