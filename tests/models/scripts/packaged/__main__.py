import argparse
import json

from .data import load
from .nets import build_model


def main():
    parser = argparse.ArgumentParser(prog="packaged")
    parser.add_argument("--samples", type=int, default=320)
    args = parser.parse_args()
    model = build_model()
    model.fit(*load(args.samples), batch_size=32, epochs=2, verbose=0)
    print(json.dumps({"updates": int(model.optimizer.iterations)}))


if __name__ == "__main__":
    main()
