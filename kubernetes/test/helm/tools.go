//go:build tools

// Package tools names the program that the tests of the chart need, so that go.sum has its checksums.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
