"""Do repeated medians lie inside intervals that were stated before? And what would other rules have stated?"""
