"""Processes of a torch.distributed job that tune together: what they say to each other, and how they agree."""
