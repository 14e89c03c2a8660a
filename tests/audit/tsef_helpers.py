"""A classifier small enough to be attacked in a test: which of two bumps does a noisy series have?"""

import torch


def bumps(n, seed=0, channels=2, length=16, dtype=torch.float32):
    """Series of noise with a bump early (class 0) or late (class 1) in the first channel."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    X = 0.3 * torch.randn(n, channels, length, generator=rng, dtype=dtype)
    time = torch.arange(length, dtype=dtype)
    X[:, 0] += torch.exp(-0.5 * (time - torch.where(y == 0, 4.0, 11.0)[:, None]) ** 2)
    return X, y


def classifier(channels=2, length=16, dtype=torch.float32, activation=torch.nn.Softplus):
    """A trained network with one hidden layer, right on nearly all series."""
    X, y = bumps(200, seed=1, channels=channels, length=length, dtype=dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = torch.nn.Linear(channels * length, 12), activation(), torch.nn.Linear(12, 2)
        model = torch.nn.Sequential(torch.nn.Flatten(), *layers).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(80):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model.eval()
