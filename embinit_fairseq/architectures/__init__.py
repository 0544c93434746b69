"""What models share: encoders, decoders, options, hubs. Nothing here registers anything."""
