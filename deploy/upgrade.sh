#!/bin/sh
# Replaces the scheduler's container by one of the code that is here, while streams run. For compose.standby.yaml:
#   COMPOSE_FILE=compose.yaml:compose.standby.yaml deploy/upgrade.sh
# The new container stands by before the old one is killed; where it does not, the old one goes on.
set -eu
docker compose build scheduler
old=$(docker compose ps --quiet scheduler)
[ -n "$old" ] || { echo "upgrade: no scheduler runs here: start it with 'docker compose up -d'" >&2; exit 1; }
count=$(echo "$old" | wc -l)
if ! docker compose up --detach --no-deps --no-recreate --scale scheduler=$((2 * count)) --wait --wait-timeout 60 scheduler
then
    docker compose logs --no-color --tail=20 scheduler
    docker compose ps --all --quiet scheduler | grep -vxF "$old" | xargs -r docker rm --force >/dev/null
    echo "upgrade: the new scheduler does not start (its log is above); the old one goes on" >&2
    exit 1
fi
echo "$old" | xargs -r docker rm --force >/dev/null
docker compose exec -T scheduler citybus health --timeout 60
echo "upgrade: the new scheduler serves"
