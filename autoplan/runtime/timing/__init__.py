"""Times training steps."""
