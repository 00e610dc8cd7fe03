// Command program stands for all programs of an image, and is linked with a module.
package main

import "go.yaml.in/yaml/v3"

func main() { _ = yaml.Unmarshal(nil, nil) }
