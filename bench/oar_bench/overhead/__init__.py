"""What the proxy costs, against its peers in the same run: medians and ratios, no claims."""
