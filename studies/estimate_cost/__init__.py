"""What does an estimate cost? ResNet-50 for tpu-v4-8, batch 512: seconds from cold, and memory over all processes."""
