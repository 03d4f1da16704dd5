module octavo.dev/e2e/cluster/binaries/pause

go 1.25.0
