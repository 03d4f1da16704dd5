// Command kubernetes holds every Kubernetes component that a one-node cluster
// needs. One binary, linked once, started under the name of the component
// (argv[0]): the components share most of their code, so that seven programs
// cost the disk, the page cache and the link time of one.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	_ "k8s.io/client-go/plugin/pkg/client/auth"           // kubectl: credential plugins
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics of every component
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
)

func main() {
	components := map[string]func(){
		"etcd":                    func() { etcdmain.Main(os.Args) },
		"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() { run(controllermanager.NewControllerManagerCommand()) },
		"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
		"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
		"kube-proxy":              func() { run(proxy.NewProxyCommand()) },
		"kubectl":                 runKubectl,
	}
	name := filepath.Base(os.Args[0])
	start, known := components[name]
	if !known {
		names := make([]string, 0, len(components))
		for n := range components {
			names = append(names, n)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%s: unknown component; link this binary under one of the names %s\n",
			name, strings.Join(names, ", "))
		os.Exit(2)
	}
	start()
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

// runKubectl differs from run in that kubectl prints its own errors.
func runKubectl() {
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
