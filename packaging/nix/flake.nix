# Kiln for Nix, built from the sources: nix run 'git+file:.?dir=packaging/nix' in a clone.
{
  description = "Diffusion engine for GPUs and CPUs in one program";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixpkgs-unstable";

  outputs =
    { nixpkgs, ... }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
        "aarch64-darwin"
      ];
      perSystem = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = perSystem (pkgs: rec {
        kiln = pkgs.callPackage ./package.nix { };
        default = kiln;
      });
    };
}
