module octavo.dev/e2e/cluster/binaries/helm

go 1.25.0

tool helm.sh/helm/v3/cmd/helm

require helm.sh/helm/v3 v3.19.5
