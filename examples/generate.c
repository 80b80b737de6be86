/* Generates text with the C API: generate MODEL_DIR [PROMPT]. SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "terrace/terrace.h"

int main(int argc, char** argv) {
    terrace_options options;
    terrace_request request;
    terrace_engine* engine = NULL;
    terrace_event event = {0};
    uint64_t id = 0;

    terrace_options_init(&options);
    options.model_dir = argc > 1 ? argv[1] : "models/demo";
    terrace_request_init(&request);
    request.prompt = argc > 2 ? argv[2] : "In the beginning";
    request.max_tokens = 32;
    request.temperature = 0;

    if (terrace_open(&options, &engine) || terrace_submit(engine, &request, &id)) {
        fprintf(stderr, "%s\n", terrace_last_error());
        terrace_close(engine);
        return 1;
    }
    while (event.finish == TERRACE_RUNNING && terrace_next(engine, id, &event) == TERRACE_OK)
        fwrite(event.text, 1, event.text_bytes, stdout);
    printf("\n[%d tokens]\n", event.generated_tokens);
    terrace_close(engine);
    return event.finish == TERRACE_FAILED;
}
