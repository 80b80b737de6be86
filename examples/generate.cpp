// Generates two texts at once with the C++ API: generate_cpp MODEL_DIR.
// SPDX-License-Identifier: MIT
#include <iostream>

#include "terrace/terrace.hpp"

int main(int argc, char** argv) {
    try {
        terrace::api::Engine engine(terrace::api::Options(argc > 1 ? argv[1] : "models/demo"));
        terrace::api::Request first("The LORD said unto Moses,"), second("Mr. Darcy looked at her");
        for (auto* r : {&first, &second}) {
            r->max_tokens = 32;
            r->temperature = 0.7f;
            r->seed = 7;
        }
        const uint64_t other = engine.submit(second);  // runs beside the first
        std::cout << first.prompt;
        const auto outcome = engine.generate(first, [](auto text) { std::cout << text; });
        std::cout << "\n[" << outcome.generated_tokens << " tokens]\n" << second.prompt;
        for (terrace_event e{}; e.finish == TERRACE_RUNNING;) {
            e = engine.next(other);
            std::cout << std::string_view(e.text, e.text_bytes);
        }
        std::cout << "\n" << engine.memory_report();
    } catch (const terrace::api::Failure& f) {
        std::cerr << f.what() << "\n";
        return 1;
    }
}
