package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
)

func TestTheLogFileRotates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cni")
	path := filepath.Join(dir, "cni.log")
	conf := netConf{LogFilePath: path, LogFileMaxSize: 1, LogFileMaxCount: 1}
	line := string(bytes.Repeat([]byte("x"), 1000))
	for range 3 { // three plugins, each of which writes nearly a megabyte
		log, done := openLog(&conf, "calico", &skel.CmdArgs{ContainerID: "c1", Args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"})
		for range 900 {
			log.Info(line)
		}
		done()
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > 1<<20 || info.Mode().Perm() != 0o644 {
		t.Errorf("log file: %v, %v; want at most 1 MB, mode 0644", info, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 2 {
		t.Errorf("files %v, %v: nothing was rotated", files, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(text, []byte("plugin=calico container=c1 pod=default/web")) {
		t.Errorf("lines do not name plugin, container and pod (%v)", err)
	}
}
