"""How the models that are shipped were trained."""
