"""How much time and memory does `autoplan estimate` take for ResNet-50 on tpu-v4-8 with batch 512?"""
