package main

import (
	"strings"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/install"
)

// settingsPath is the list of all settings beside objects and the chart's values: environment variables of each
// program, placeholders of the installer's template, and configuration keys, arguments and annotations of the plugins.
const settingsPath = "docs/settings.csv"

func settings() [][]string {
	rows := [][]string{{"Program", "Kind", "Name", "Type or form", "Default", "Meaning"}}
	for _, p := range []struct {
		program   string
		variables []config.Var
	}{
		{"node", config.Describe(config.NodeVariables{})},
		{"install", config.Describe(config.Install{})},
		{"kube-controllers", config.Describe(config.ControllersVariables{})},
		{"calico, calico-ipam", config.Describe(config.PluginVariables{})},
		{"calico-ipam -upgrade", config.Describe(config.UpgradeVariables{})},
	} {
		for _, v := range p.variables {
			rows = append(rows, []string{p.program, "variable", v.Name, "", v.Default, v.Help})
		}
	}
	for _, p := range install.Placeholders() {
		meaning := p.Help
		if strings.HasPrefix(meaning, strings.Trim(p.Name, "_")) {
			meaning = "the variable " + meaning
		}
		rows = append(rows, []string{"install", "placeholder of CNI_NETWORK_CONFIG", p.Name, "", "", meaning})
	}
	return append(rows, pluginInputs()...)
}
