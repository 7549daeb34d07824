#!/usr/bin/env bash
# Starts a real Nacos 3.1 server (config module, Derby) on loopback only.
#
#   start.sh PORT HOME      prints the server's pid once it is ready
#   stop.sh PID             stops it
#
# HTTP listens on PORT, gRPC on PORT+1000 (clients) and PORT+1001 (cluster).
# HOME keeps data, logs and conf; delete it for a fresh server.
# Environment:
#   NACOS_AUTH=true|false   authentication of the client API (default true)
#   NACOS_PROPERTIES=...    more lines for application.properties
#   NACOS_WORK=DIR          class path and launcher class (default: .work beside this)
#   NACOS_HEAP=512m         maximum heap
#   NACOS_WAIT=120          seconds to wait for readiness
#   NACOS_SCHEME=http       https where NACOS_PROPERTIES switch TLS on
# Needs a JDK 17+, Maven and curl; the first start downloads the jars (about 64 MB)
# into Maven's local repository.
set -euo pipefail

if [ $# -ne 2 ]; then sed -n '2,18s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
here=$(cd "$(dirname "$0")" && pwd)
port=$1
mkdir -p "$2/conf" "$2/logs"
home=$(cd "$2" && pwd)
work=${NACOS_WORK:-$here/.work}

# 1. The class path, once, and again when pom.xml changes. Its order matters:
#    com.caucho:hessian has to come before com.alipay.sofa:hessian, which holds
#    an older copy of the same classes (the server does not start) next to
#    others that it needs (without them it cannot push changes). Maven's own
#    order is right; a lib/* wildcard leaves it to chance.
#    The stamp is written last, so an interrupted download is repeated.
if ! cmp -s "$here/pom.xml" "$work/pom.xml" || [ ! -s "$work/classpath" ]; then
    mkdir -p "$work"
    mvn -B -q -f "$here/pom.xml" dependency:build-classpath \
        -DincludeScope=runtime -Dmdep.outputFile="$work/classpath" >&2
    cp "$here/pom.xml" "$work/pom.xml"
fi
classpath=$(cat "$work/classpath")

# 2. The launcher class, once.
if [ ! -e "$work/classes/NacosMain.class" ] || [ "$here/NacosMain.java" -nt "$work/classes/NacosMain.class" ]; then
    mkdir -p "$work/classes"
    javac -cp "$classpath" -d "$work/classes" "$here/NacosMain.java" >&2
fi

# 3. Configuration. The file must exist; Nacos watches it and applies changes
#    of the auth switches while it runs.
cat > "$home/conf/application.properties" <<EOF
nacos.server.main.port=$port
server.address=127.0.0.1
nacos.inetutils.ip-address=127.0.0.1
nacos.core.auth.system.type=nacos
nacos.core.auth.enabled=${NACOS_AUTH:-true}
nacos.core.auth.admin.enabled=${NACOS_AUTH:-true}
nacos.core.auth.caching.enabled=false
nacos.core.auth.server.identity.key=test-identity
nacos.core.auth.server.identity.value=test-identity
nacos.core.auth.plugin.nacos.token.expire.seconds=18000
nacos.core.auth.plugin.nacos.token.secret.key=$(printf 'for-tests-only-0123456789abcdef-0123456789' | base64)
${NACOS_PROPERTIES:-}
EOF

# 4. Start. These are read before the file or not from it at all, so they are
#    system properties. functionMode=config leaves out the naming module and,
#    with it, the Raft port that always listens on every interface.
cd "$home"
java -Xmx"${NACOS_HEAP:-512m}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dnacos.standalone=true \
    -Dnacos.functionMode=config \
    -Dnacos.deployment.type=server \
    -Dnacos.home="$home" \
    -Dnacos.logs.path="$home/logs" \
    -Dnacos.remote.grpc.listen.ip=127.0.0.1 \
    -cp "$work/classes:$classpath" NacosMain \
    --spring.config.additional-location="file:$home/conf/" \
    > "$home/logs/console.log" 2>&1 < /dev/null &
pid=$!
trap 'kill "$pid" 2>/dev/null; exit 1' INT TERM
echo "$pid" > "$home/pid"

# 5. Wait.
for ((i = 0; i < ${NACOS_WAIT:-120} * 5; i++)); do
    if ! kill -0 "$pid" 2>/dev/null; then
        echo "nacos exited while starting; see $home/logs/console.log" >&2
        tail -n 20 "$home/logs/console.log" >&2
        exit 1
    fi
    if curl -fsSk -m 2 -o /dev/null "${NACOS_SCHEME:-http}://127.0.0.1:$port/nacos/v3/admin/core/state/readiness" 2>/dev/null; then
        echo "$pid"
        exit 0
    fi
    sleep 0.2
done
echo "nacos not ready after ${NACOS_WAIT:-120} s; see $home/logs/console.log" >&2
kill "$pid"
exit 1
