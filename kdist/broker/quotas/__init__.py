"""Client quotas: who may use how much, and for how long whoever used more is held back."""
