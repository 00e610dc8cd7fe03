package vm

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// NetworkModules are the kernel modules that Tortie's packages use: a virtual machine does not load modules on demand,
// so each expression of any nftables rule is listed (including kube-proxy's reject and fib).
var NetworkModules = []string{
	"veth", "ipip", "ip6_tunnel", "sit", "vxlan", "wireguard", "bridge", "br_netfilter", "dummy", "ifb", "tun",
	"nf_tables", "nf_conntrack", "nf_conntrack_netlink", "nft_chain_nat", "nft_ct", "nft_fib_inet", "nft_fib_ipv4", "nft_fib_ipv6",
	"nft_hash", "nft_limit", "nft_log", "nft_masq", "nft_nat", "nft_numgen", "nft_objref", "nft_quota", "nft_redir",
	"nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6", "nft_compat", "nfnetlink_log", "nf_flow_table", "nf_flow_table_inet",
	"nft_flow_offload",
	"sch_ingress", "sch_tbf", "act_mirred", "cls_u32", "cls_matchall",
	"sctp",
}

// partOf maps modules to the module that contains them in newer kernels, or to "" if the kernel itself does. The
// kernel's package does not list these.
var partOf = map[string]string{"nft_objref": "nf_tables", "virtio_pci": "", "virtiofs": ""}

// sharedRootModules are needed for the shared root file system.
var sharedRootModules = []string{"virtio_pci", "virtiofs", "overlay"}

// module is a kernel module's file; dependencies use its name with underscores.
type module struct {
	name string
	path string
	// builtIn modules have no file.
	builtIn bool
}

// content returns the module's ELF object. Debian 13 stores modules compressed.
func (m module) content() ([]byte, error) {
	if !strings.HasSuffix(m.path, ".xz") {
		return os.ReadFile(m.path)
	}
	out, err := exec.Command("xz", "--decompress", "--stdout", m.path).Output()
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", m.path, err)
	}
	return out, nil
}

// depends returns the modules that must be loaded before this one, from the object's .modinfo, so that depmod is not
// needed.
func (m module) depends() ([]string, error) {
	b, err := m.content()
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", m.path, err)
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("read module %s: no .modinfo in it", m.path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", m.path, err)
	}
	return dependencies(info), nil
}

func dependencies(modinfo []byte) []string {
	for _, field := range bytes.Split(modinfo, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			return strings.Split(list, ",")
		}
	}
	return nil
}

// moduleName returns a module's name in the kernel, with underscores, for a file name that may have dashes.
func moduleName(file string) (string, bool) {
	base := strings.TrimSuffix(filepath.Base(file), ".xz")
	name, ok := strings.CutSuffix(base, ".ko")
	return strings.ReplaceAll(name, "-", "_"), ok
}

// findModules returns the modules of a directory such as /lib/modules/VERSION, and those built into the kernel.
func findModules(dir string) (map[string]module, error) {
	all := map[string]module{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if name, ok := moduleName(p); ok && err == nil {
			all[name] = module{name: name, path: p}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, file := range strings.Fields(string(b)) {
		if name, ok := moduleName(file); ok {
			all[name] = module{name: name, builtIn: true}
		}
	}
	return all, nil
}

// LoadOrder returns the modules with all their dependencies, each after its own.
func (k *Kernel) LoadOrder(names []string) ([]module, error) {
	all, err := findModules(k.Modules)
	if err != nil {
		return nil, fmt.Errorf("list the kernel's modules: %w", err)
	}
	var order []module
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if done[name] {
			return nil
		}
		done[name] = true
		m, ok := all[name]
		if whole, newer := partOf[name]; newer && !ok {
			if whole == "" {
				return nil
			}
			return add(whole)
		}
		if !ok {
			return fmt.Errorf("kernel %s has no module %s", k.Version, name)
		}
		if m.builtIn {
			return nil
		}
		needs, err := m.depends()
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := add(strings.ReplaceAll(n, "-", "_")); err != nil {
				return err
			}
		}
		order = append(order, m)
		return nil
	}
	for _, n := range names {
		if err := add(strings.ReplaceAll(n, "-", "_")); err != nil {
			return nil, err
		}
	}
	return order, nil
}
