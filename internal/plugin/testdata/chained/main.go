// Command chained is a CNI plugin for the middle of a list: it insists on the result of the plugin before it, and
// passes that on.
package main

import (
	"encoding/json"
	"errors"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

func previous(args *skel.CmdArgs) (*types.NetConf, error) {
	conf := &types.NetConf{}
	if err := json.Unmarshal(args.StdinData, conf); err != nil {
		return nil, err
	}
	if err := version.ParsePrevResult(conf); err != nil {
		return nil, err
	}
	if conf.PrevResult == nil {
		return nil, errors.New("no prevResult")
	}
	return conf, nil
}

func main() {
	check := func(args *skel.CmdArgs) error {
		_, err := previous(args)
		return err
	}
	// Before 0.4.0 of the specification DEL has no result.
	del := func(*skel.CmdArgs) error { return nil }
	add := func(args *skel.CmdArgs) error {
		conf, err := previous(args)
		if err != nil {
			return err
		}
		return types.PrintResult(conf.PrevResult, conf.CNIVersion)
	}
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: del}, version.All, "CNI plugin chained for tests")
}
