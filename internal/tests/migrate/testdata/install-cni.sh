# What Calico's install-cni does: binaries, kubeconfig and conflist, each renamed into place.
set -e
put() { # FILE MODE: its content comes on standard input
  cat > "$1.new"; chmod "$2" "$1.new"; mv "$1.new" "$1"
}
mkdir -p /host/opt/cni/bin /host/etc/cni/net.d /host/var/lib/calico /host/run/calico
for program in /host/opt/calico/cni/*; do put "/host/opt/cni/bin/${program##*/}" 755 < "$program"; done
account=/var/run/secrets/kubernetes.io/serviceaccount
put /host/etc/cni/net.d/calico-kubeconfig 600 <<EOF
# Kubeconfig file for Calico CNI plugin. Installed by calico/node.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT
    certificate-authority-data: "$(base64 -w0 < $account/ca.crt)"
users:
- name: calico
  user:
    token: "$(cat $account/token)"
contexts:
- name: calico-context
  context: {cluster: local, user: calico}
current-context: calico-context
EOF
printf %s "$NODE" > /host/var/lib/calico/nodename
put /host/etc/cni/net.d/10-calico.conflist 600 <<EOF
{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "log_level": "info",
      "log_file_path": "/var/log/calico/cni/cni.log",
      "datastore_type": "kubernetes",
      "calico_api_group": "$CALICO_API_GROUP",
      "nodename": "$NODE",
      "mtu": 1500,
      "ipam": {"type": "calico-ipam"},
      "policy": {"type": "k8s"},
      "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"}
    },
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}}
  ]
}
EOF
