"""Is training the same wherever a plan says so, and do plans say so wherever it is?"""
