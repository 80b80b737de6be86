#!/usr/bin/env bash
# Each folder of src/ may include only the folders that docs/design.md allows it. Fails with a line
# per forbidden #include, or per CUDA header outside src/cuda.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
declare -A may=(
  [base]="" [io]="base" [device]="base" [exl3]="base" [ops]="base device exl3"
  [tier]="base io device exl3" [cpu]="base device exl3 ops" [cuda]="base device exl3 ops"
  [text]="base io" [model]="base io device exl3 ops tier"
  [engine]="base io device exl3 ops tier text model" [serve]="base text engine"
)
bad=0
for folder in "${!may[@]}"; do
  while IFS=: read -r file line included; do
    [ -z "$included" ] && continue
    case " $folder ${may[$folder]} " in
      *" $included "*) ;;
      *) echo "$file:$line: src/$folder may not include $included/ (allowed: ${may[$folder]:-nothing})"; bad=1 ;;
    esac
  done < <(grep -rnoE --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' '^#include "[a-z0-9_]+/' "src/$folder" 2>/dev/null |
           grep -vE '"terrace/' | sed -E 's|#include "([a-z0-9_]+)/|\1|')
done
if grep -rnE --include='*.h' --include='*.cpp' '#include <(cuda|cub|nccl)' src apps | grep -v '^src/cuda/'; then
  echo "CUDA headers belong to src/cuda alone"; bad=1
fi
[ $bad -eq 0 ] && echo "layers: ok"
exit $bad
