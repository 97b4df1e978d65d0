"""Table 1's systems, each as its makers run it."""
