package main

import (
	_ "embed"
	"fmt"

	"sigs.k8s.io/yaml"
)

//go:embed elsewhere.yaml
var elsewhereText []byte

// elsewhere holds figures of other runs on other machines, for the tables and for the limits that refer to Calico.
type elsewhere struct {
	About    string `json:"about"`
	Sequence []struct {
		Name      string  `json:"name"`
		Add       float64 `json:"add"`
		AddP99    float64 `json:"addP99"`
		AddCPU    float64 `json:"addCPU"`
		Del       float64 `json:"del"`
		DelCPU    float64 `json:"delCPU"`
		RSS       float64 `json:"rss"`
		Processes int     `json:"processes"`
		ServerCPU float64 `json:"serverCPU"`
		Requests  string  `json:"requests"`
	} `json:"sequence"`
	Bursts []struct {
		Name      string  `json:"name"`
		Size      int     `json:"size"`
		Add       float64 `json:"add"`
		Del       float64 `json:"del"`
		Anonymous float64 `json:"anonymous"`
	} `json:"bursts"`
	Nodes []struct {
		Name     string  `json:"name"`
		OneByOne float64 `json:"oneByOne"`
		AtOnce   float64 `json:"atOnce"`
	} `json:"nodes"`
	Starts []struct {
		Name string  `json:"name"`
		Wall float64 `json:"wall"`
		RSS  float64 `json:"rss"`
		File float64 `json:"file"`
	} `json:"starts"`
}

// nameCalicoThere is the row of Calico's released images.
const nameCalicoThere = "Calico, combined"

func loadElsewhere() (elsewhere, error) {
	var e elsewhere
	if err := yaml.UnmarshalStrict(elsewhereText, &e); err != nil {
		return e, fmt.Errorf("elsewhere.yaml: %w", err)
	}
	return e, nil
}

// addRate returns the rate of a burst of 30 elsewhere.
func (e elsewhere) addRate(name string) float64 {
	for _, b := range e.Bursts {
		if b.Name == name && b.Size == 30 {
			return b.Add
		}
	}
	return 0
}
