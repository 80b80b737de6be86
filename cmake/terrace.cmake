# Build rules shared by every folder: warnings, sanitizers, modules, tests.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(tl-expected REQUIRED)

find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TERRACE_CCACHE})
endif()
find_program(TERRACE_MOLD mold)
if(TERRACE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# fp-contract=off: a*b+c is fused only where the source says fma, so every backend and every
# optimisation level computes the same bits.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off;-fno-math-errno;-Wall;-Wextra;-Wpedantic;-Wshadow>"
                    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
                    $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>)
if(TERRACE_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
if(TERRACE_SANITIZE)
  add_compile_options(-fsanitize=${TERRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TERRACE_SANITIZE})
endif()
if(TERRACE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address)
endif()

# terrace_module(base SOURCES a.cpp ... DEPS other modules ... LIBS external targets ...)
function(terrace_module name)
  cmake_parse_arguments(M "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(terrace_${name} STATIC ${M_SOURCES})
  target_include_directories(terrace_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  list(TRANSFORM M_DEPS PREPEND terrace_)
  target_link_libraries(terrace_${name} PUBLIC ${M_DEPS} tl::expected PRIVATE fmt::fmt ${M_LIBS})
endfunction()

# terrace_tests(io SOURCES a_test.cpp ... DEPS modules ... LIBS ...): one gtest binary per folder.
function(terrace_tests name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;DEPS;LIBS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 600)
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name}_tests ${T_SOURCES})
  list(TRANSFORM T_DEPS PREPEND terrace_)
  target_link_libraries(${name}_tests PRIVATE ${T_DEPS} terrace_test_support fmt::fmt GTest::gmock GTest::gtest_main ${T_LIBS})
  target_compile_definitions(${name}_tests PRIVATE
    TERRACE_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data" TERRACE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name}_tests)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT})
endfunction()
