// Package vmproto is the protocol between the launcher of a virtual machine and the machine's first process. It has
// only names and data, as both sides link it.
package vmproto

// Paths in the initial file system.
const (
	ConfigFile  = "/vm.json"
	ModulesDir  = "/modules"
	ModuleOrder = ModulesDir + "/order"
)

// RootTag is the tag of the shared file system that becomes the root.
const RootTag = "root"

// ResultDevice is the serial port for the result, which is thus distinct from any output of a program.
const ResultDevice = "/dev/ttyS1"

// ResultFormat is the format of the line on ResultDevice; its value is the program's exit code.
const ResultFormat = "exit %d\n"

// Config is the configuration of a virtual machine.
type Config struct {
	// Program is run with Args, Env and in Dir; its exit ends the machine. Without one the machine ends with exit code 0
	// as soon as it has booted.
	Program string
	Args    []string
	Env     []string
	Dir     string
	// SharedRoot makes the launcher's root directory the root, under an overlay in memory for all writes. Otherwise the
	// root is the initial file system.
	SharedRoot bool
	// Shares are writable directories of the launcher, by tag.
	Shares map[string]string
}
