// Package layers holds the test that keeps the product's imports in their layers. It has no code of its own.
package layers
