package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tortie-net/tortie/lab"
	"github.com/tortie-net/tortie/lab/internal/binaries"
	"github.com/tortie-net/tortie/lab/internal/deps"
	"github.com/tortie-net/tortie/lab/internal/preflight"
	"github.com/tortie-net/tortie/lab/internal/vm"
	"github.com/tortie-net/tortie/lab/internal/vmproto"
)

// vmTimeScale is the factor by which a virtual machine slows a lab down.
func vmTimeScale(m vm.Machine) string {
	if m.KVM {
		return "1"
	}
	return "10"
}

// Needs of a virtual machine in MB in addition to its memory: memory of qemu and virtiofsd, disk of the initial file
// system.
const qemuMemory, initrdDisk = 200, 100

// passedOn are the environment variables that are passed to a program in the virtual machine.
func passedOn(m vm.Machine) []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case name == "PATH", name == "HOME", name == "XDG_CACHE_HOME", name == "TZ", name == "APIGROUP",
			strings.HasPrefix(name, "TORTIE_"), strings.HasPrefix(name, "GO"):
			env = append(env, e)
		}
	}
	return append(env, timeScale+"="+vmTimeScale(m), binaries.InVM+"=1")
}

// newMachine fills the cache with the needs of a virtual machine and the programs used inside, where nothing is built.
// memoryMB is the memory of the machine. A machine that does not count instructions uses KVM if that works.
func newMachine(ctx context.Context, memoryMB int, counting bool, from vm.Source, programs ...string) (vm.Machine, error) {
	needs := preflight.Needs{What: "the virtual machine", Memory: memoryMB + qemuMemory, Less: ", or ask for less where there is -mem",
		Packages: deps.VM, Space: []preflight.Space{{Dir: os.TempDir(), MB: initrdDisk, Elsewhere: "set TMPDIR to a directory of another one"}}}
	if err := preflight.Check(needs); err != nil {
		return vm.Machine{}, err
	}
	c, err := binaries.Open(os.Stderr)
	if err != nil {
		return vm.Machine{}, err
	}
	paths, err := c.Paths(ctx, append([]string{"vminit"}, programs...)...)
	if err != nil {
		return vm.Machine{}, err
	}
	kernel, err := vm.FetchKernel(ctx, c.Dir, from, os.Stderr)
	if err != nil {
		return vm.Machine{}, err
	}
	m := vm.Machine{Init: paths[0], Kernel: kernel, Counting: counting, MemoryMB: memoryMB, Console: os.Stdout}
	if !counting {
		m.KVM, err = vm.FindKVM(ctx, c.Dir, kernel, m.Init, os.Stderr)
	}
	return m, err
}

func runVM(ctx context.Context, args []string) error {
	f := flags("vm")
	memory := f.Int("mem", 4096, "memory of the virtual machine in MB; what programs write there counts too")
	timeout := f.Duration("timeout", 20*time.Minute, "end of the virtual machine")
	out := f.String("out", "", "directory that the program can write to, at the same path; all else it writes is lost")
	programs := f.String("programs", strings.Join(lab.DefaultPrograms, ","),
		"programs of lab build that are built before the machine boots, with commas between them; inside nothing is built")
	counting := countFlag(f)
	newer := unstableFlags(f)
	if err := parse(f, args, true); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return usageError{"lab vm [-mem MB] [-timeout D] [-out DIR] [-programs NAMES] [-count] [-newest] [-bird] -- CMD [ARGS]..."}
	}
	if err := preflight.Check(preflight.Needs{What: "lab vm", Root: "shares the machine's files with the virtual machine"}); err != nil {
		return err
	}
	program, err := exec.LookPath(f.Arg(0))
	if err != nil {
		return err
	}
	if program, err = filepath.Abs(program); err != nil {
		return err
	}
	m, err := newMachine(ctx, *memory, *counting, newer.source(), strings.FieldsFunc(*programs, func(r rune) bool { return r == ',' })...)
	if err != nil {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	m.Config = vmproto.Config{Program: program, Args: f.Args()[1:], Env: passedOn(m), Dir: wd, SharedRoot: true}
	m.Timeout = *timeout
	if err := newer.addBIRD(ctx, &m); err != nil {
		return err
	}
	if *out != "" {
		dir, err := filepath.Abs(*out)
		if err != nil {
			return err
		}
		m.Shares = map[string]string{"out": dir}
	}
	return exitCode(m.Run(ctx))
}

func exitCode(code int, err error) error {
	if err == nil && code != 0 {
		return exitError{code}
	}
	return err
}

// runVMTest is for go test -exec: it runs a static test binary with only its testdata, busybox, and the additions of
// its options.
func runVMTest(ctx context.Context, args []string) error {
	f := flags("vmtest")
	memory := f.Int("mem", 1024, "memory of the virtual machine in MB")
	counting := countFlag(f)
	nft := f.Bool("nft", false, "have this machine's nft")
	newer := unstableFlags(f)
	timeout := f.Duration("timeout", 10*time.Minute, "end of the virtual machine")
	if err := parse(f, args, true); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return usageError{`go test -exec "lab vmtest" ./PACKAGE (with CGO_ENABLED=0)`}
	}
	m, err := newMachine(ctx, *memory, *counting, newer.source())
	if err != nil {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	const program = "/test/program"
	m.Config = vmproto.Config{Program: program, Args: f.Args()[1:], Env: append(passedOn(m), "PATH=/bin"), Dir: wd}
	m.Files = map[string]string{program: f.Arg(0)}
	m.Timeout = *timeout
	testdata := filepath.Join(wd, "testdata")
	if _, err := os.Stat(testdata); err == nil {
		m.Files[testdata] = testdata
	}
	if err := newer.addBIRD(ctx, &m); err != nil {
		return err
	}
	if err := addBusybox(&m); err != nil {
		return err
	}
	if *nft {
		if err := addProgram(&m, "nft"); err != nil {
			return err
		}
	}
	return exitCode(m.Run(ctx))
}

func countFlag(f *flag.FlagSet) *bool {
	return f.Bool("count", false, "make time the number of instructions of one processor, in nanoseconds, which needs an emulated one")
}

// fromUnstable selects the parts of a machine from Debian's unstable release.
type fromUnstable struct{ kernel, bird *bool }

func unstableFlags(f *flag.FlagSet) fromUnstable {
	return fromUnstable{
		kernel: f.Bool("newest", false, "take the newest kernel of Debian, of its unstable release, in place of this release's"),
		bird: f.Bool("bird", false,
			"have BIRD 2 of Debian's unstable release, which has TCP-AO, in the directory that TORTIE_BIRD names; vmtest has BIRD 3 in /bird3, too"),
	}
}

func (u fromUnstable) source() vm.Source {
	if *u.kernel {
		return vm.Unstable
	}
	return vm.Stable
}

// addBIRD adds both versions of BIRD with their libraries. A shared root has them already.
func (u fromUnstable) addBIRD(ctx context.Context, m *vm.Machine) error {
	if !*u.bird {
		return nil
	}
	c, err := binaries.Open(os.Stderr)
	if err != nil {
		return err
	}
	two, three, err := vm.FetchBIRD(ctx, c.Dir, os.Stderr)
	if !m.SharedRoot {
		for _, part := range []string{"/usr/lib", "/usr/sbin"} {
			m.Files["/bird"+part] = two + part
		}
		m.Files["/bird3/usr/sbin"] = three + "/usr/sbin"
		two = "/bird"
	}
	m.Env = append(m.Env, "TORTIE_BIRD="+two)
	return err
}

// addBusybox adds the common small programs: ip, ping, nc, a shell.
func addBusybox(m *vm.Machine) error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("%w: lab deps -install", err)
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return fmt.Errorf("list the applets of %s: %w", path, err)
	}
	m.Files["/bin/busybox"] = path
	m.Links = map[string]string{}
	for _, applet := range strings.Fields(string(list)) {
		if applet != "busybox" {
			m.Links["/bin/"+applet] = "/bin/busybox"
		}
	}
	return nil
}

// addProgram adds a program with the libraries that it is linked with.
func addProgram(m *vm.Machine, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%w: lab deps -install", err)
	}
	list, err := exec.Command("ldd", path).Output()
	if err != nil {
		return fmt.Errorf("list the libraries of %s: %w", path, err)
	}
	m.Files["/bin/"+name] = path
	for library := range strings.FieldsSeq(string(list)) {
		if !filepath.IsAbs(library) {
			continue
		}
		if m.Files[library], err = filepath.EvalSymlinks(library); err != nil {
			return err
		}
	}
	return nil
}
