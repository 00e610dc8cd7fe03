package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tortie-net/tortie/internal/app/config"
)

// etcdDir is the directory of the certificates for etcd, beside the conflist.
const etcdDir = "calico-tls"

const (
	etcdCA   = "etcd-ca"
	etcdCert = "etcd-cert"
	etcdKey  = "etcd-key"
)

// etcdFiles returns the certificates for etcd in this pod, as files for the host.
func etcdFiles(cfg config.Install) ([]file, error) {
	var files []file
	for _, name := range []string{etcdCA, etcdCert, etcdKey} {
		content, err := os.ReadFile(filepath.Join(cfg.TLSDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading a certificate for etcd: %w (TLS_ASSETS_DIR must name their directory)", err)
		}
		files = append(files, file{filepath.Join(cfg.HostNetDir, etcdDir, name), content, 0o600})
	}
	return files, nil
}

// etcdPath returns the host's path of a certificate for etcd; empty if this pod has none.
func etcdPath(cfg config.Install, name string) string {
	if _, err := os.Stat(filepath.Join(cfg.TLSDir, name)); err != nil {
		return ""
	}
	return filepath.Join(cfg.NetDir, etcdDir, name)
}

// putEtcdFiles writes the files of calico-tls, and removes certificates that this pod no longer has.
func (l *ledger) putEtcdFiles(cfg config.Install, replace replaceFunc) error {
	files, err := etcdFiles(cfg)
	if err != nil {
		return err
	}
	dir := filepath.Join(cfg.HostNetDir, etcdDir)
	if len(files) > 0 {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making %s: %w", dir, err)
		}
	}
	if _, err := l.put(replace, files...); err != nil {
		return err
	}
	for _, name := range []string{etcdCA, etcdCert, etcdKey} {
		if etcdPath(cfg, name) == "" {
			if _, err := l.remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}
