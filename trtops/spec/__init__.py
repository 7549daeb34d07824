"""What a person writes and reviews: the engine spec and the runtime config (design §3)."""
