"""The names of the classes of the published sets."""

FASHION = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]
CLASS_NAMES = {
    "mnist": [str(digit) for digit in range(10)],
    "fashion-mnist": FASHION,
    "sample": FASHION,
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
}
