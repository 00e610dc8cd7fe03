package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/cgroup"
	"github.com/tortie-net/tortie/lab/internal/pki"
)

// programs are directories of the machine that a node mounts read-only. On Debian most are symbolic links into /usr.
var programs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// settings are the files of /etc that the machine's programs need. The rest of /etc is the node's own.
var settings = []string{
	"alternatives", "ca-certificates", "debian_version", "group", "iproute2", "ld.so.cache", "localtime", "nsswitch.conf",
	"os-release", "passwd", "protocols", "rpc", "services", "ssl",
}

// devices are the devices of containerd, runc and the kubelet, without the machine's disks.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"kmsg", 1, 11}, {"tty", 5, 0},
	{"fuse", 10, 229}, {"net/tun", 10, 200},
}

// machineWide are sysctls that a kubelet sets although they are global: a node gets regular files instead.
var machineWide = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// disk are the directories that survive a restart of the node. They include images and volumes, which may be large.
var disk = []string{"etc/cni", "opt", "var/lib", "var/log"}

type root struct {
	dir string
	cfg Config
}

// makeRoot builds the node's root file system in a tmpfs and makes it the root of the mount namespace.
func makeRoot(c Config) error {
	// Later mounts must not propagate to the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	r := root{dir: filepath.Join(c.Dir, "root"), cfg: c}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", r.dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", r.dir, err)
	}
	steps := []func() error{r.disk, r.programs, r.etc, r.kernel, r.dev, r.lab, r.pivot, r.sysctls}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	// Shared, as on a real node: a pod's Bidirectional and HostToContainer mounts rely on it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

func (r root) path(name string) string { return filepath.Join(r.dir, name) }

func (r root) mkdir(names ...string) error {
	for _, n := range names {
		if err := os.MkdirAll(r.path(n), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (r root) programs() error {
	for _, name := range programs {
		if err := r.mirror("/"+name, name); err != nil {
			return err
		}
	}
	return r.mkdir("root", "home", "mnt", "opt/cni/bin", "srv", "var/lib/cni", "var/cache", "var/spool", "var/tmp",
		"etc/cni/net.d", "etc/kubernetes")
}

// mirror makes a file or directory of the machine visible in the node: a link is copied, anything else is bind-mounted
// read-only.
func (r root) mirror(src, name string) error {
	st, err := os.Lstat(src)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(src)
		if err != nil {
			return err
		}
		return os.Symlink(target, r.path(name))
	}
	return r.bind(src, name, st.IsDir(), unix.MS_RDONLY|unix.MS_REC)
}

func (r root) bind(src, name string, dir bool, flags uintptr) error {
	dst := r.path(name)
	if err := makePoint(dst, dir); err != nil {
		return err
	}
	if err := unix.Mount(src, dst, "", unix.MS_BIND|flags&unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", src, err)
	}
	if flags&unix.MS_RDONLY == 0 {
		return nil
	}
	if err := unix.Mount("", dst, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", src, err)
	}
	return nil
}

// makePoint creates a mount point.
func makePoint(path string, dir bool) error {
	if dir {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o644)
}

func (r root) etc() error {
	for _, name := range settings {
		if err := r.mirror("/etc/"+name, "etc/"+name); err != nil {
			return err
		}
	}
	files := map[string]string{
		"etc/hostname":   r.cfg.Name + "\n",
		"etc/hosts":      r.cfg.hostsFile(),
		"etc/machine-id": r.cfg.MachineID + "\n",
		// A lab has no DNS server: resolvers shall fail at once and not after their timeouts.
		"etc/resolv.conf": "options attempts:1\n",
	}
	for name, text := range files {
		if err := os.WriteFile(r.path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

type mount struct {
	kind, name, options string
	flags               uintptr
}

func (r root) mount(m mount) error {
	if err := r.mkdir(m.name); err != nil {
		return err
	}
	if err := unix.Mount(m.kind, r.path(m.name), m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mount /%s: %w", m.name, err)
	}
	return nil
}

func (r root) mountAll(mounts ...mount) error {
	for _, m := range mounts {
		if err := r.mount(m); err != nil {
			return err
		}
	}
	return nil
}

// kernel mounts the kernel's file systems. Each shows the namespaces of this process, which are the node's.
func (r root) kernel() error {
	err := r.mountAll(
		mount{kind: "proc", name: "proc"},
		mount{kind: "sysfs", name: "sys"},
		mount{kind: "tmpfs", name: "run", options: "mode=755"},
		mount{kind: "tmpfs", name: "tmp", options: "mode=1777"},
	)
	if err != nil {
		return err
	}
	if err := r.mkdir("run/netns", "run/lock", "run/containerd"); err != nil {
		return err
	}
	if err := os.Symlink("/run", r.path("var/run")); err != nil {
		return err
	}
	layout, err := cgroup.Detect()
	if err != nil {
		return err
	}
	if err := layout.Mount(r.path("sys/fs/cgroup")); err != nil {
		return err
	}
	if _, err := os.Stat(r.path("sys/fs/bpf")); err != nil {
		return nil // a kernel without BPF file system
	}
	return r.mount(mount{kind: "bpf", name: "sys/fs/bpf"})
}

func (r root) dev() error {
	if err := r.mountAll(
		mount{kind: "tmpfs", name: "dev", options: "mode=755"},
		mount{kind: "devpts", name: "dev/pts", options: "newinstance,ptmxmode=0666,mode=620"},
		mount{kind: "tmpfs", name: "dev/shm", options: "mode=1777"},
	); err != nil {
		return err
	}
	for _, d := range devices {
		path := r.path("dev/" + d.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make device %s: %w", d.name, err)
		}
		if err := os.Chmod(path, 0o666); err != nil { // mknod applied the umask
			return err
		}
	}
	links := map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2"}
	for name, target := range links {
		if err := os.Symlink(target, r.path("dev/"+name)); err != nil {
			return err
		}
	}
	return nil
}

func (r root) disk() error {
	for _, name := range disk {
		src := filepath.Join(DiskDir(r.cfg.Dir), strings.ReplaceAll(name, "/", "-"))
		if err := os.MkdirAll(src, 0o755); err != nil {
			return err
		}
		if err := r.bind(src, name, true, 0); err != nil {
			return err
		}
	}
	return nil
}

// lab mounts the lab's own files: its binary, the images, the directory with settings and logs.
func (r root) lab() error {
	err := errors.Join(
		// One program under each of its names, so that process lists are readable.
		r.bind(r.cfg.Hyperkube, binDir+"/kubelet", false, unix.MS_RDONLY),
		r.bind(r.cfg.Hyperkube, binDir+"/kube-proxy", false, unix.MS_RDONLY),
		r.bind(r.cfg.Dir, stateDir, true, 0),
		r.mkdir(imageDir),
		r.containerd())
	for i, archive := range r.cfg.Images {
		err = errors.Join(err, r.bind(archive, imageFile(i), false, unix.MS_RDONLY))
	}
	return err
}

// containerd of another release is mounted on the machine's programs, with the same paths.
func (r root) containerd() error {
	if r.cfg.Containerd == "" {
		return nil
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		// Not bind: it would create a missing file on the machine.
		err := unix.Mount(filepath.Join(r.cfg.Containerd, name), r.path("usr/bin/"+name), "", unix.MS_BIND, "")
		if err != nil {
			return fmt.Errorf("cover the machine's %s: %w", name, err)
		}
	}
	return nil
}

// pivot makes the new root the root and unmounts the old one, with every mount of the machine and of other labs, which
// their owners could not release otherwise.
func (r root) pivot() error {
	const old = "old-root"
	if err := r.mkdir(old); err != nil {
		return err
	}
	if err := unix.PivotRoot(r.dir, r.path(old)); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/"+old, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("drop the machine's root: %w", err)
	}
	return os.Remove("/" + old)
}

func (r root) sysctls() error {
	const dir = "/run/sysctl"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	values := maps.Clone(machineWide)
	// A new boot ID, by which kubelets detect a reboot of their node.
	values["kernel/random/boot_id"] = bootID()
	for name, value := range values {
		own := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(own, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		err := unix.Mount(own, "/proc/sys/"+name, "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cover sysctl %s: %w", name, err)
		}
	}
	return nil
}

// bootID returns a random UUID, as the kernel generates at each boot.
func bootID() string {
	t := pki.Token()
	return fmt.Sprintf("%s-%s-%s-%s-%s", t[:8], t[8:12], t[12:16], t[16:20], t[20:32])
}
