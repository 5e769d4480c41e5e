"""What the user's own classes do, read from their code: which names they use, and what their batch hooks change."""
