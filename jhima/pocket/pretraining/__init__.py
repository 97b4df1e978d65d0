"""How the pocket base model was made."""
