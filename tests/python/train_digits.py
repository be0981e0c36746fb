#!/usr/bin/env python3
"""Train two small classifiers on scikit-learn's handwritten digits and export them to ONNX.

    python train_digits.py --out DIR        # fixtures/digits was made so; under a minute on two cores

DIR gets cnn.onnx and transformer.onnx (opset 20, input "image" [batch, 1, 8, 8] in 0..1, output
"scores" [batch, 10], "batch" symbolic), test_images.npy (f32), test_labels.npy (i64) and
accuracy.json: how many of the test images each model gets right in PyTorch.

The test images are a stratified quarter of the set, never seen in training.
"""
import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from export_models import export_onnx, run_onnx

SEED = 20
CLASSES = 10


def cnn():
    """Two stages of convolution, batch norm and ReLU, each pooled to half the side, and a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 2 * 2, CLASSES),
    )


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V, written out rather than called as scaled_dot_product_attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, tokens):
        batch, length, width = tokens.shape
        head_width = width // self.heads
        split = self.query_key_value(tokens).view(batch, length, 3, self.heads, head_width)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(head_width), dim=-1)
        return self.output((weights @ value).transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    """Attention and a GELU feed-forward network, each behind a layer norm and added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens):
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.feed_forward(self.feed_forward_norm(tokens))


class Transformer(nn.Module):
    """Sixteen patches of 2x2 pixels as tokens, two encoder layers, the tokens' mean and a linear head."""

    def __init__(self, width=48, heads=4, layers=2):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(0.02 * torch.randn(16, width))
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, image):
        patches = image.view(-1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(-1, 16, 4)
        tokens = self.layers(self.embed(patches) + self.position)
        return self.head(self.norm(tokens).mean(dim=1))


def digits():
    """(train images, train labels, test images, test labels); images are [n, 1, 8, 8] in 0..1."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels.astype(np.int64), test_size=0.25, stratify=labels, random_state=SEED)
    return tuple(map(torch.from_numpy, (train_images, train_labels, test_images, test_labels)))


def train(model, images, labels, epochs, rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    batch = 64
    steps = epochs * math.ceil(len(images) / batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(batch):
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval().requires_grad_(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)  # sums in one order, so that a second run gives the same weights
    train_images, train_labels, test_images, test_labels = digits()
    np.save(out / "test_images.npy", test_images.numpy())
    np.save(out / "test_labels.npy", test_labels.numpy())

    accuracy = {}
    for name, definition, epochs, rate in (("cnn", cnn, 30, 5e-3), ("transformer", Transformer, 60, 3e-3)):
        torch.manual_seed(SEED)
        model = train(definition(), train_images, train_labels, epochs, rate)
        scores = model(test_images)
        predictions = scores.argmax(dim=1)
        correct = int((predictions == test_labels).sum())
        accuracy[name] = {"correct": correct, "of": len(test_labels)}
        path = out / f"{name}.onnx"
        export_onnx(model, (test_images[:4],), path, opset=20, input_names=["image"], output_names=["scores"],
                    dynamic_axes={"image": {0: "batch"}})
        (onnx_scores,) = run_onnx(path, (test_images,))
        if not np.array_equal(onnx_scores.argmax(axis=1), predictions.numpy()):
            sys.exit(f"train_digits.py: {path} predicts otherwise than PyTorch under onnxruntime")
        difference = np.abs(onnx_scores - scores.numpy()).max()
        print(f"{name}: {correct} of {len(test_labels)} right, {path.stat().st_size:,} bytes, the same predictions "
              f"under onnxruntime (scores within {difference:.1e})", flush=True)
    (out / "accuracy.json").write_text(json.dumps(accuracy, indent=2) + "\n")


if __name__ == "__main__":
    main()
