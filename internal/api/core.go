package api

// Secret is a Kubernetes Secret.
type Secret struct {
	Meta `json:"metadata"`
	// Data holds the values; JSON encodes them in base64.
	Data map[string][]byte `json:"data,omitempty"`
}

// ResourceType implements Resource.
func (*Secret) ResourceType() Type {
	return Type{Version: "v1", Kind: "Secret", Plural: "secrets", Namespaced: true}
}

// ConfigMap is a Kubernetes ConfigMap.
type ConfigMap struct {
	Meta `json:"metadata"`
	Data map[string]string `json:"data,omitempty"`
}

// ResourceType implements Resource.
func (*ConfigMap) ResourceType() Type {
	return Type{Version: "v1", Kind: "ConfigMap", Plural: "configmaps", Namespaced: true}
}
