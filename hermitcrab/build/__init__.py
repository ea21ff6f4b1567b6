"""At home: render, lock, build and measure the images. Needs the `build` extra."""
